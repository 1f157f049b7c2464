# A tour of examples/first_steps.nnc: step, inspect values, go back, change a value, compare.
list
# Step over a layer, then into the loop.
next
stats %h
next
step
where
# Stop in every iteration from the second on, and inspect values.
break 17 if $iter >= 1
continue
continue
show %p
hist %s 8
p max(%s) - max(prev(%s))
# Go back: one statement, then to the previous breakpoint hit.
back
rcontinue
# Change the scores in a new branch. The original run is kept.
mark before
set %s[0] = 0
delete 1
finish
diff %sharp
why %steps
branches
branch 0
continue
