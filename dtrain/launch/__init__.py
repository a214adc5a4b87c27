"""Starting and watching the processes of a local cluster; no TensorFlow."""
