"""What happens around the steps: heirs of the session hooks, one class a file."""
