"""The language server for graph text (`nncdbg lsp`), for all editors with the Language Server Protocol."""
