"""How messages come and go: frames, numbers, standard streams, sockets and who may connect to them."""
