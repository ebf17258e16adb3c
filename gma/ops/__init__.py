"""Pure tensor functions: ``reference`` is the definition, ``routing`` and ``memory`` are what runs."""
