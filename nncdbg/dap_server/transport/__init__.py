"""Transport of messages: frames, numbers, standard streams, sockets and access control."""
