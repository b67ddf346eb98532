"""How does it travel? Framing and sending, shared by both ends."""
