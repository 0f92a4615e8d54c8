"""In and out of other trainers: tasks and right answers in their forms, their rollouts back, our reward inside them."""
