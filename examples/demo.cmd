# The main job on examples/first_steps.nnc: step, look, go back, change a value, compare.
list
# Over a layer, then into the loop.
next
stats %h
next
step
where
# Stop in every round from the second on, and look.
break 17 if $iter >= 1
continue
continue
show %p
hist %s 8
p max(%s) - max(prev(%s))
# Back in time: one statement, then to the hit before.
back
rcontinue
# What if the scores were other ones here?  The course of events as it was stays.
mark before
set %s[0] = 0
delete 1
finish
diff %sharp
why %steps
branches
branch 0
continue
