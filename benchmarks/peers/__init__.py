"""What else trains the same models: each as its own documentation advises."""
