# A few looks.
p mean(%h)

print %h.shape
foo
source transcripts/none.cmd
p 1 + 1
