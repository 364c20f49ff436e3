"""Starts moto's server with one change: puts are answered one at a time.

moto checks the condition of a put and stores the object in two steps, so that of two puts at once both could succeed,
and an update would be lost. An S3 server does not lose it.
"""

import threading

from moto import server

ONE_PUT = threading.Lock()


class OrderedPuts(server.DomainDispatcherApplication):
    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] != "PUT":
            return super().__call__(environ, start_response)
        with ONE_PUT:
            return super().__call__(environ, start_response)


server.DomainDispatcherApplication = OrderedPuts
server.main()
