"""The chat page: conversations at the left, the open one in the middle, the meter at the right."""

from app.pages.chat.page import ChatPage

__all__ = ["ChatPage"]
