/* The smallest shared library, for the ELF reader's tests. */
int small_library_function(void);
int small_library_function(void) { return 1; }
