"""What clients may use: rates by user and client id, the throttle times that follow, and connections by address."""
