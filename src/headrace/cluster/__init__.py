"""Who is who? Cluster metadata: its records, the image they make, the controller that decides, the store."""
