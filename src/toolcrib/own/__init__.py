"""The house's own tools, which no file declares and no host registered. Their calls are like any other's."""
