"""HTTP/1.1 on the wire: what a head may say, how a body is framed, and the two protocols that hold the sockets."""
