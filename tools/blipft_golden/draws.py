"""The random numbers of golden data. The C++ tests draw the same numbers, so only checksums of the results are stored."""


class Draws:
    def __init__(self):
        self.state = 42

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.state >> 33) % limit
