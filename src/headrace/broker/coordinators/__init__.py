"""Who decides for groups and transactions? The coordinators of this broker, their writes and their markers."""
