# Options that make a fault in a reader of files harder to exploit, as far as the compiler has them: checked copies,
# canaries, protection from stack clashes, marked targets of jumps, random addresses, read-only tables of the linker.
# tools/check_hardening.py checks the linked files for them.
include(CheckCCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
foreach(flag IN ITEMS -fstack-protector-strong -fstack-clash-protection -fcf-protection)
    string(MAKE_C_IDENTIFIER "COUPLET_HAS${flag}" has)
    check_c_compiler_flag(-Werror\ ${flag} ${has})
    if(${has})
        add_compile_options(${flag})
    endif()
endforeach()
add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
check_linker_flag(C -Wl,-z,relro,-z,now COUPLET_HAS_RELRO)
if(COUPLET_HAS_RELRO)
    add_link_options(-Wl,-z,relro,-z,now)
endif()
