"""One file tells one strategy's whole story; `base` holds what they share."""
