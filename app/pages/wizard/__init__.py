"""The set-up: looks at this computer, measures it, proposes models, explains the plan of one, gets it."""

from app.pages.wizard.page import WizardPage

__all__ = ["WizardPage"]
