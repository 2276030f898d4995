"""Other packages' interfaces on tacit's parts. Nothing here gives a certificate."""
