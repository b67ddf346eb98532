"""Client telemetry (KIP-714): clients ask what to push of their metrics, and push it. `subscriptions` says who pushes
what, `clients` keeps track of who pushes, `pushed` keeps what they pushed, for whoever exports it."""
