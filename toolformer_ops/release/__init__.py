"""A release: its files, its card, its export as chats, its way to a hub."""
