"""What is served? Partitions: their logs, appends, reads, and those who wait for either."""
