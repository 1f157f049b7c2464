"""The language server for graph text (`nncdbg lsp`), for editors with the Language Server Protocol."""
