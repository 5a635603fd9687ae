"""The settings file: values of flags that a user wants in every command, or in one."""
