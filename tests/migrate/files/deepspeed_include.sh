deepspeed --include localhost:0,1,2,3 --master_port 61000 --module package.train --zero_stage 3
