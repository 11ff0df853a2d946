"""The downloads page: the whole queue, in its order, with what can be done about each job."""

from app.pages.downloads.page import DownloadsPage

__all__ = ["DownloadsPage"]
