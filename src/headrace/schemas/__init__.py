"""Records with a shape: the client side of a schema registry. Needs `pip install "headrace[schemas]"`."""
