"""The experiments that come with the package, one a file: `--experiment=NAME`."""
