"""A change to the machine that is undone whatever happens."""

import atexit


class Resource:
    """A context manager whose close() is idempotent and also runs at exit."""

    def __enter__(self):
        atexit.register(self.close)
        try:
            self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()
        atexit.unregister(self.close)
