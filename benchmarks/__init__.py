"""What dtrain's speed is compared with: README.md tells more."""
