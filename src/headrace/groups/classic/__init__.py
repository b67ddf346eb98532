"""Groups of the classic protocol: members wait for each other, and their leader assigns."""
