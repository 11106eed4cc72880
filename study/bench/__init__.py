"""Times networks under each setting, and measures their memory."""
