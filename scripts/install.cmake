# What `make install` puts where; part of CMakeLists.txt. Each component is one
# of the Debian packages that scripts/deb makes.
include(CMakePackageConfigHelpers)

set(doc ${CMAKE_INSTALL_DOCDIR})
set(cmake_files ${CMAKE_INSTALL_LIBDIR}/cmake/larder)

# The library, and what a program is built with.
install(TARGETS larder EXPORT larder-targets
        LIBRARY COMPONENT library NAMELINK_COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/larder TYPE INCLUDE COMPONENT development)
# The prefix is found from where the file lies: a tree may be moved.
file(RELATIVE_PATH LARDER_PC_PREFIX
     /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(scripts/larder.pc.in larder.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/larder.pc COMPONENT development
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(EXPORT larder-targets NAMESPACE larder:: FILE larderConfig.cmake
        DESTINATION ${cmake_files} COMPONENT development)
# 0.2 may have another interface than 0.1.
write_basic_package_version_file(
    ${CMAKE_BINARY_DIR}/larderConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/larderConfigVersion.cmake
        DESTINATION ${cmake_files} COMPONENT development)

# The programs, what systemd needs of them, and the manual. It lies as it does
# in the source, so that its links work.
if(cli_sources)
    install(TARGETS larder_program larder_bench COMPONENT program)
    install(FILES deploy/systemd/larder.service COMPONENT program
            DESTINATION lib/systemd/system)
    install(FILES deploy/systemd/larder.sysusers COMPONENT program
            DESTINATION lib/sysusers.d RENAME larder.conf)
    install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md
                  THIRD_PARTY.md LICENSE
            DESTINATION ${doc} COMPONENT program)
    install(DIRECTORY docs deploy examples DESTINATION ${doc}
            COMPONENT program)
    install(DIRECTORY bench/results DESTINATION ${doc}/bench
            COMPONENT program)
endif()

# The manual pages: made by the program, so not where it cannot run.
if(cli_sources AND NOT SKBUILD AND
   (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
    set(man ${CMAKE_BINARY_DIR}/man)
    set(options_page docs/reference/options.md)
    add_custom_command(OUTPUT ${man}/larder.1
        COMMAND ${CMAKE_SOURCE_DIR}/scripts/man ${man}
                ${CMAKE_SOURCE_DIR}/include/larder/larder.h
                ${CMAKE_CROSSCOMPILING_EMULATOR}
                $<TARGET_FILE:larder_program>
        DEPENDS larder_program larder_bench scripts/man deploy/larder.conf
                include/larder/larder.h ${options_page}
        COMMENT "Manual pages" VERBATIM)
    add_custom_target(man ALL DEPENDS ${man}/larder.1)
    install(DIRECTORY ${man}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
            COMPONENT program FILES_MATCHING PATTERN "*.1")
    install(DIRECTORY ${man}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man5
            COMPONENT program FILES_MATCHING PATTERN "*.5")
    install(DIRECTORY ${man}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3
            COMPONENT development FILES_MATCHING PATTERN "*.3")
endif()

# The wheel's folder _bin. Wheels have no links: one file, by its last name.
if(SKBUILD)
    install(PROGRAMS $<TARGET_FILE:larder> RENAME liblarder.so
            DESTINATION . COMPONENT wheel)
    install(TARGETS larder_program larder_bench DESTINATION .
            COMPONENT wheel)
    if(LARDER_BUNDLE)
        install(PROGRAMS ${MICROHTTPD_LIBRARY} DESTINATION .
                COMPONENT wheel)
        install(FILES ${LARDER_BUNDLE}/libmicrohttpd.COPYING
                DESTINATION ${SKBUILD_METADATA_DIR}/licenses
                COMPONENT wheel)
    endif()
endif()
