"""What does the cluster know? The controller, those who follow it, and how a broker belongs to it."""
