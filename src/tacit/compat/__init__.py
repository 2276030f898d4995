"""The former home of other packages' interfaces, which is now `tacit.adapters`."""
