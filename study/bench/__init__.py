"""How long networks take under each setting, and in how much memory."""
