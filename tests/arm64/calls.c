/* Runs kernels in an emulator of arm64 upon the memory of another process, which is the one that started it.

   Requests come on the standard input, answers go to the standard output; all numbers are 64 bits wide.

       L n, n bytes                      load the shared library of that path; the address of `kernel`, or 0
       C address, arguments, step, thread    call a kernel

   Memory is brought here page by page when a kernel first touches it: P and an address ask for a page, whose
   answer is 1 and its bytes, or 0 if there is none. When the kernel has returned, W, an address and a word
   say that these 8 bytes were changed, and D that it is done. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_PAGES = 1 << 18 };

static uint64_t *pages[MOST_PAGES]; /* here, at the addresses that they have there */
static uint64_t *before[MOST_PAGES]; /* what they held when they came */
static int n_pages;

static void put(const void *bytes, size_t n) {
  for (const char *at = bytes; n > 0;) {
    ssize_t some = write(1, at, n);
    if (some <= 0) _exit(2);
    at += some, n -= some;
  }
}

static int get(void *bytes, size_t n) {
  for (char *at = bytes; n > 0;) {
    ssize_t some = read(0, at, n);
    if (some <= 0) return 0;
    at += some, n -= some;
  }
  return 1;
}

static void tell(char what, uint64_t number) {
  put(&what, 1);
  put(&number, sizeof number);
}

static void *new_page(void *at) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
  return mmap(at, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void bring(int number, siginfo_t *info, void *context) {
  uint64_t at = (uint64_t)info->si_addr & -(uint64_t)PAGE, there;
  tell('P', at);
  if (!get(&there, sizeof there) || !there || n_pages == MOST_PAGES) {
    signal(number, SIG_DFL); /* the access is repeated, and ends this process */
    return;
  }
  if (new_page((void *)at) != (void *)at) _exit(3);
  get((void *)at, PAGE);
  pages[n_pages] = (void *)at;
  before[n_pages] = new_page(0);
  memcpy(before[n_pages++], (void *)at, PAGE);
}

static void give_back(void) {
  for (int i = 0; i < n_pages; i++) {
    for (int j = 0; j < PAGE / 8; j++)
      if (pages[i][j] != before[i][j]) {
        tell('W', (uint64_t)&pages[i][j]);
        put(&pages[i][j], 8);
      }
    munmap(pages[i], PAGE);
    munmap(before[i], PAGE);
  }
  n_pages = 0;
}

int main(void) {
  struct sigaction action = {.sa_sigaction = bring, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, 0);
  for (char what; get(&what, 1);) {
    if (what == 'L') {
      uint64_t n;
      char path[4096] = "";
      get(&n, sizeof n);
      if (n >= sizeof path || !get(path, n)) return 1;
      void *library = dlopen(path, RTLD_NOW);
      tell('A', library ? (uint64_t)dlsym(library, "kernel") : 0);
    } else {
      int64_t call[4];
      if (!get(call, sizeof call)) return 1;
      ((void (*)(int64_t, int64_t, int64_t))call[0])(call[1], call[2], call[3]);
      give_back();
      tell('D', 0);
    }
  }
  return 0;
}
