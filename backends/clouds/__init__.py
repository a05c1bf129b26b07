"""How a control plane or a host is reached: the process runner, CLIs, credentials."""
