"""The models page: what is on this computer, what would run here, what the Hub has."""

from app.pages.models.page import ModelsPage

__all__ = ["ModelsPage"]
