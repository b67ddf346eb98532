"""Who may connect: listeners, connections, frames, and the memory that they share."""
