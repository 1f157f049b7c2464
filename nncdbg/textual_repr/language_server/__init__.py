"""The language server of graph text: `nncdbg lsp`, for every editor with the Language Server Protocol."""
