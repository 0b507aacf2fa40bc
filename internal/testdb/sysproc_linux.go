package testdb

import "syscall"

// dieWithParent asks the kernel to shut the server down at once when the thread that started it dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
