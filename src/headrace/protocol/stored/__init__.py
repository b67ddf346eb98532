"""Messages that are stored instead of sent: records of internal topics and of the metadata log."""
