"""A producer's side of transactions, and consuming, transforming and producing exactly once."""
