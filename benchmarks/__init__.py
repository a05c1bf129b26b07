"""What is measured of the product itself, by hand: each prints its figures and its target."""
