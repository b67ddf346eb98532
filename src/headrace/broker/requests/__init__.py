"""How is a request answered? Its way from a decoded frame to a handler: rights, bounds, figures."""
