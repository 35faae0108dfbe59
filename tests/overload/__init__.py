"""A gateway under twice the load its fleet can carry, with clients and replicas that leave; `make overload`."""
