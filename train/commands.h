/* The sub-commands of `ats-train`. argv[0] is the full name; the result is the exit code. */
#ifndef ATS_TRAIN_COMMANDS_H
#define ATS_TRAIN_COMMANDS_H

int command_tokenizer(int argc, char **argv);
int command_train(int argc, char **argv);
int command_export(int argc, char **argv);
int command_experts(int argc, char **argv);
int command_quality(int argc, char **argv);

#endif
